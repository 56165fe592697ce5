-- The longest kernels
-- requires: kernels
-- param: top 20 how many rows
-- column: start_ns int start
-- column: duration_ns int duration
-- column: ordinal int CUDA ordinal of the device in its process
-- column: stream int CUDA stream
-- column: grid text blocks in x, y and z
-- column: block text threads of a block in x, y and z
-- column: short_name text name without arguments
-- note: rows whose times are missing, zero or reversed are left out, as in an analysis
SELECT
    start_ns,
    end_ns - start_ns AS duration_ns,
    ordinal,
    stream,
    grid_x || ' x ' || grid_y || ' x ' || grid_z AS grid,
    block_x || ' x ' || block_y || ' x ' || block_z AS block,
    short_name
FROM kernels
WHERE start_ns > 0 AND end_ns >= start_ns
ORDER BY duration_ns DESC, start_ns
LIMIT :top
