"""Joins: GPU work -> API call -> thread -> NVTX path; devices; never a row multiplied."""
