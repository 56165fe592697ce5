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
SELECT
    start_ns,
    end_ns - start_ns AS duration_ns,
    ordinal,
    stream,
    grid_x || ' x ' || grid_y || ' x ' || grid_z AS grid,
    block_x || ' x ' || block_y || ' x ' || block_z AS block,
    short_name
FROM kernels
ORDER BY duration_ns DESC, start_ns
LIMIT :top
