-- Kernels by short name, most time first
-- requires: kernels
-- param: top 20 how many rows
-- column: short_name text name without arguments
-- column: count int kernels
-- column: time_ns int sum of their durations
-- column: mean_ns real mean duration
-- column: min_ns int shortest
-- column: max_ns int longest
-- note: rows whose times are missing, zero or reversed are left out, as in an analysis
SELECT
    short_name,
    count(*) AS count,
    sum(end_ns - start_ns) AS time_ns,
    avg(end_ns - start_ns) AS mean_ns,
    min(end_ns - start_ns) AS min_ns,
    max(end_ns - start_ns) AS max_ns
FROM kernels
WHERE start_ns > 0 AND end_ns >= start_ns
GROUP BY short_name_id
ORDER BY time_ns DESC, short_name
LIMIT :top
