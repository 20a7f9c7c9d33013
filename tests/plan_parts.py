"""A small model, corpus and machine that plans are worked out for by hand."""

from ffkv.plan.machine import LIBRARIES, Libraries, Machine, Rates
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split

# Two layers of d = 4 with 8 and 16 memories: 64 entries of attention and 2 x 32 and 2 x 64 of memories.
SHAPE = Shape("Hand", (8, 16), 4, 10, 12, 400, 80, 64 + 64 + 128, 40, False, False, "float32", 4)
TRAIN = Split(tokens=1000, sentences=100, documents=10, size=5000, square=120, seconds=2, source="")
VALIDATION = Split(tokens=300, sentences=30, documents=3, size=1500, square=120, seconds=1, source="")

RATES = Rates(1e9, 1e9, 1e9, 1e9, 1e6, 1e6, 1e9, 1e9, 1e9, 1e9, 1.0, 1.0, 0.5)
MACHINE = Machine(8, "cpu", RATES, dict.fromkeys(LIBRARIES, Libraries(1.0, 1e8)))
