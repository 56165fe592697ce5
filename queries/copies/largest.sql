-- The largest copies
-- requires: copies
-- param: top 20 how many rows
-- column: start_ns int start on the GPU
-- column: duration_ns int duration on the GPU
-- column: bytes int bytes
-- column: kind int copy kind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP; 11 to 13 unified memory
-- column: src_kind int source memory: 0 pageable, 1 pinned, 2 device, 4 managed, 7 unknown
-- column: dst_kind int destination memory
-- column: stream int CUDA stream
-- column: bandwidth real bytes a second
-- note: rows whose times are missing, zero or reversed are left out, as in an analysis
SELECT
    start_ns,
    end_ns - start_ns AS duration_ns,
    bytes,
    kind,
    src_kind,
    dst_kind,
    stream,
    bytes * 1e9 / nullif(end_ns - start_ns, 0) AS bandwidth
FROM copies
WHERE start_ns > 0 AND end_ns >= start_ns
ORDER BY bytes DESC, start_ns
LIMIT :top
