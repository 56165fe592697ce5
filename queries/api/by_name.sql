-- CUDA API calls by name, most time first
-- requires: api
-- param: top 20 how many rows
-- column: name text function, with its version suffix
-- column: count int calls
-- column: time_ns int sum of their durations on all threads
-- column: mean_ns real mean duration
-- column: max_ns int longest
-- column: failed int calls that returned an error
-- note: a row of class 67 holds the stack of a call; it counts only where the call has no row of its own.
SELECT
    name,
    count(*) AS count,
    sum(end_ns - start_ns) AS time_ns,
    avg(end_ns - start_ns) AS mean_ns,
    max(end_ns - start_ns) AS max_ns,
    sum(return_value <> 0) AS failed
FROM api
WHERE event_class IS NOT 67
    OR coalesce(correlation, 0) = 0
    OR (thread >> 24, correlation) NOT IN (
        SELECT thread >> 24, correlation FROM api
        WHERE event_class IS NOT 67 AND thread IS NOT NULL AND correlation <> 0
    )
GROUP BY name_id
ORDER BY time_ns DESC, name
LIMIT :top
