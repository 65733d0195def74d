package stories

import "testing"

// TestSample is what CI runs of these tests: `make cluster-sample`.
func TestSample(t *testing.T) {
	t.Run("install", TestTheAgentRunsAsNobodyAndStartsWithoutAWarning)
	t.Run("both ways", func(t *testing.T) {
		t.Run("files", func(t *testing.T) {
			t.Parallel()
			TestAFileSystemBackupOfAnEmptyDirAndAClaimComesBack(t)
		})
		t.Run("snapshots", func(t *testing.T) {
			t.Parallel()
			TestTheDataOfASnapshotIsMovedThereAndBack(t)
		})
	})
	t.Run("class", TestMoversCarryTheClassThatTheConfigMapNames)
}
