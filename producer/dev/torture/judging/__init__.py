"""The judgement of a run: what clients were told and what happened outside, held against what is stored."""
