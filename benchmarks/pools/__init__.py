"""One worker process beside two, under the same load: what a second process of a pool adds on this machine."""
