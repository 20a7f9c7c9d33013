"""How much of a layer's output its dictionary makes again, and what the model predicts with the rest left out.

`measure` reads real text. `tables` describes what it writes, `section` shows it in the report.
"""
