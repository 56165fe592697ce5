-- Tables of the export
-- column: name text the export's own name
-- column: definition text how nsys created it
SELECT name, sql AS definition
FROM main.sqlite_master
WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
ORDER BY name
