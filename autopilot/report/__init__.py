"""The report: one self-contained page, and its pictures, from the result of a simulation.

`data` says what a report is made of, `page.write_report` makes it; the rest is `words`
(sentences and figures), `tables`, `plots` (what each picture draws) and `charts` (how a
picture is saved and put into the page).
"""
