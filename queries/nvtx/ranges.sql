-- NVTX ranges by name, most time first
-- requires: nvtx
-- param: top 50 how many rows
-- column: name text name, as written
-- column: style text push/pop or start/end
-- column: pid int process id
-- column: domain int domain number in its process, 0 the default one
-- column: count int ranges
-- column: unfinished int ranges that never ended
-- column: time_ns int sum of the finished ones' durations
-- column: mean_ns real mean of the finished ones
-- column: max_ns int longest of the finished ones
SELECT
    coalesce(registered_text, text) AS name,
    CASE type WHEN 59 THEN 'push/pop' ELSE 'start/end' END AS style,
    thread / 16777216 % 16777216 AS pid,
    domain,
    count(*) AS count,
    sum(end_ns IS NULL) AS unfinished,
    sum(end_ns - start_ns) AS time_ns,
    avg(end_ns - start_ns) AS mean_ns,
    max(end_ns - start_ns) AS max_ns
FROM nvtx
WHERE type IN (59, 60)
GROUP BY coalesce(registered_text, text), type, pid, domain
ORDER BY time_ns DESC, name, style, pid, domain
LIMIT :top
