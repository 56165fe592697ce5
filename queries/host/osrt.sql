-- Calls of the OS runtime by name, most time first
-- requires: osrt
-- param: top 20 how many rows
-- column: name text function
-- column: count int calls
-- column: time_ns int sum of their durations on all threads
-- column: max_ns int longest
SELECT
    name,
    count(*) AS count,
    sum(end_ns - start_ns) AS time_ns,
    max(end_ns - start_ns) AS max_ns
FROM osrt
GROUP BY name_id
ORDER BY time_ns DESC, name
LIMIT :top
