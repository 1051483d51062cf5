"""`treadle bench`: a model's latency beside its peers', and where its time goes, kernel by kernel."""
