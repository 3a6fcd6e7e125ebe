"""The report: one self-contained page, and its plots, from the result of a simulation.

`data` defines the content of a report and `page.write_report` writes it; `words` holds sentences and figures,
`html_tables` the tables, `plots` the content of each plot, and `charts` the saving and embedding of plots.
"""
