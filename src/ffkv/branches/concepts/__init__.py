"""Which labelled concepts memories separate, beside coordinates of the residual stream and random directions.

`measure` takes tasks: texts with two labels (`labels`), or tokens of the corpus that a rule labels (`rules`). `draw` chooses texts
and puts documents into halves. It reads what memories do on them (`activations`), and per layer it ranks them on the train half and fits
a logistic regression on the first k of them (`probe`). `null` does the same with shuffled labels. `summarize` sums up
over tasks. `tables` describes the tables; `section` shows them. docs/settings.md defines every number.
"""
