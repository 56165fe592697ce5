-- Time that the profiler took in the program
-- requires: overheads
-- column: name text what the profiler did
-- column: count int times
-- column: time_ns int sum of their durations on all threads
SELECT
    name,
    count(*) AS count,
    sum(end_ns - start_ns) AS time_ns
FROM overheads
GROUP BY name_id
ORDER BY time_ns DESC, name
