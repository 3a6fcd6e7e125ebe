"""The custom resources of the autopilot, AutopilotPolicy and Recommendation: their definitions, and their keeper.

It decides nothing: an approval goes to the inbox like one over HTTP.
"""
