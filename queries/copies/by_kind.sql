-- Copies by kind and kinds of memory (unified-memory migrations are kinds 11 to 13)
-- requires: copies
-- column: kind int copy kind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 11 to 13 unified memory
-- column: src_kind int source memory: 0 pageable, 1 pinned, 2 device, 4 managed, 7 unknown
-- column: dst_kind int destination memory
-- column: count int copies
-- column: bytes int bytes
-- column: time_ns int sum of their durations
-- column: bandwidth real bytes a second of their time
-- note: rows whose times are missing, zero or reversed are left out, as in an analysis
SELECT
    kind,
    src_kind,
    dst_kind,
    sum(copy_count) AS count,
    sum(bytes) AS bytes,
    sum(end_ns - start_ns) AS time_ns,
    sum(bytes) * 1e9 / nullif(sum(end_ns - start_ns), 0) AS bandwidth
FROM copies
WHERE start_ns > 0 AND end_ns >= start_ns
GROUP BY kind, src_kind, dst_kind
ORDER BY bytes DESC, kind, src_kind, dst_kind
