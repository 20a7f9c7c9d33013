"""What a run will cost, before anything long starts: tokens, operations, disk, memory, time."""
