"""`phalanx demo`: a tiny model learns a few hundred facts on this machine and answers through Transformers."""
