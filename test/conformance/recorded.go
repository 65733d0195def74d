package conformance

import (
	"bytes"
	_ "embed" // the recorded results
	"encoding/json"
	"fmt"
)

// recordedResults are Lateen's on the control plane of all tests, for packages that run in another directory.
//
//go:embed results/lateen.json
var recordedResults []byte

// CompareStatus compares what Play returned for Lateen, on any control plane, with what is recorded of the real one.
func (c *Case) CompareStatus(status string) error {
	var report Report
	if err := json.Unmarshal(recordedResults, &report); err != nil {
		return fmt.Errorf("read recorded results: %w", err)
	}
	recorded := report.of(c)
	if recorded == nil {
		return fmt.Errorf("%s: %s has no recorded result; run: make conformance AGENT=lateen CASES='%s'", c.Kind, c.Title, c.Title) //nolint:err113 // for people
	}
	var compact bytes.Buffer
	if len(recorded.Status) > 0 {
		if err := json.Compact(&compact, recorded.Status); err != nil {
			return fmt.Errorf("read recorded status: %w", err)
		}
	}
	if compact.String() != status {
		return fmt.Errorf("the status is\n%s\nwant, as recorded on the real control plane,\n%s", status, &compact) //nolint:err113 // for people
	}
	return nil
}
