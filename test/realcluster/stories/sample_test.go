package stories

import "testing"

// TestSample is what CI runs of these tests: `make cluster-sample`.
func TestSample(t *testing.T) {
	t.Run("install", TestTheAgentRunsAsNobodyAndStartsWithoutAWarning)
	t.Run("files", TestAFileSystemBackupOfAnEmptyDirAndAClaimComesBack)
	t.Run("snapshots", TestTheDataOfASnapshotIsMovedThereAndBack)
	t.Run("class", TestMoversCarryTheClassThatTheConfigMapNames)
}
