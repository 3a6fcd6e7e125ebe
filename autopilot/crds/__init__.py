"""The custom resources of the autopilot, AutopilotPolicy and Recommendation: their definitions, and what keeps their
objects. It decides nothing: an approval goes to the inbox like one over HTTP.
"""
