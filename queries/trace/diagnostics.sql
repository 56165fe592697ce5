-- What the profiler says of its own recording
-- requires: diagnostics
-- column: time_ns int time of the message, ns since the session's start
-- column: severity int 1 information, 2 warning, 3 error
-- column: text text message
SELECT time_ns, severity, text
FROM diagnostics
ORDER BY time_ns, text
