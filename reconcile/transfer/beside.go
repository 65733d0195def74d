package transfer

// MustNotRunBeside tells whether a mover of a restore must not be told to start while that of another volume of the same
// pod works. The mover before may have left its mark in the volume, and the init container restore-wait ends once all
// volumes have theirs (Velero's velero-restore-helper): with the last one the pod would go on while a mover still writes.
func (s State) MustNotRunBeside(other State) bool {
	return other.Phase.HasStarted() && (s.Restarts > 0 || other.Restarts > 0)
}
