"""Take over what an interrupted run left: resources that exist, are ours, and stand in no state."""
