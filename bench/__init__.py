"""The benches: what a guarded effect costs, held against raw syncs of the same disk in the same run. See README.md."""
