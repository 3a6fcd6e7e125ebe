"""Free capacity that cannot be used, and why.

It measures: it decides nothing, moves nothing and reads no policy. Supply is free capacity as histograms (`supply.py`),
demand is a number of gangs of each kind (`demand.py`); gangs are packed the largest first (`packing.py`). What does not
fit as the capacity is, and would fit if one cause after another were removed, is lost to that cause (`measure.py`).
"""
