package transfer

// MustNotRunBeside reports whether a restore mover must not start while the mover of another volume of the same pod
// works. A previous mover may have left its done file in the volume. The init container restore-wait terminates
// once every volume has its done file (Velero's velero-restore-helper). With the last done file the pod would
// continue while a mover still writes.
func (s State) MustNotRunBeside(other State) bool {
	return other.Phase.HasStarted() && (s.Restarts > 0 || other.Restarts > 0)
}
