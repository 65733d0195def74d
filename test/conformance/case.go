// Package conformance holds cases of what an agent has to do, and plays them against whichever agent it is given; no
// case knows which one that is.
package conformance

import (
	"bytes"
	"embed"
	_ "embed" // the recorded results
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/exposer/truncate"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

//go:embed cases
var cases embed.FS

// Case is one file of cases/KIND/, whose name is its title. In the objects of a case, $WORDS stand for names that are
// made when it is played (docs/conformance.md lists them).
type Case struct {
	// Title and Kind follow from the path of the file.
	Title string       `json:"-"`
	Kind  testenv.Kind `json:"-"`
	// Shows are the sections and weaknesses (W-numbers) of docs/velero-protocol.md that the case is about.
	Shows []string `json:"shows"`

	// Config is the node-agent ConfigMap's content, Repository that of the backup repositories' ConfigMap.
	Config     Object `json:"config"`
	Repository Object `json:"repository"`
	// Maintenance is the content of the ConfigMap of maintenance jobs, by key.
	Maintenance map[string]Object `json:"maintenance"`
	// PrepareTimeout is from Accepted to Prepared; 0: 30 min.
	PrepareTimeout metav1.Duration `json:"prepareTimeout"`
	// DaemonSet is patched onto the DaemonSet of the node-agent.
	DaemonSet Object `json:"daemonSet"`
	// Nodes are further nodes, by the placeholders of their names; NODE is the one that there is in any case.
	Nodes map[string]Machine `json:"nodes"`
	// Begins is the program of the agent that is there at first, if it is not the one that is played: the step "agent:
	// starts" always starts that one.
	Begins string `json:"begins"`
	// Requests are those of agents to which something happens.
	Requests []Request `json:"requests"`
	// Given are objects that are there before the agent is.
	Given []Object `json:"given"`
	// Volume is what is moved.
	Volume Volume `json:"volume"`
	// Mover says what becomes of movers.
	Mover Mover `json:"mover"`
	// Transfer is patched onto the resource before it is created.
	Transfer Object `json:"transfer"`
	// Happens is done one after the other, beginning when the resource has been created.
	Happens []Step `json:"happens"`

	// Within is how long the transfer may take to its end from the last of what happens; 0: as long as agents may take.
	Within metav1.Duration `json:"within"`
	// Ends is what the resource is like in the end, and Phases are all that it went through.
	Ends   Object          `json:"ends"`
	Phases []testenv.Phase `json:"phases"`
	// Made is what was there at some time, Never what never was, Left what is there in the end, and Gone what is not.
	Made  []Object `json:"made"`
	Never []Object `json:"never"`
	Left  []Object `json:"left"`
	Gone  []Object `json:"gone"`
	// AtOnce is how many objects of a sort there were at most at any time.
	AtOnce []AtOnce `json:"atOnce"`
	// Movers is how many pods moved, or were to move, this resource; nil: 1.
	Movers *int `json:"movers"`
}

// Object is a part of an object, as match understands it.
type Object map[string]any

// AtOnce is a sort of objects.
type AtOnce struct {
	Of   Object `json:"of"`
	Most int    `json:"most"`
}

// Machine is a node.
type Machine struct {
	Agent bool   `json:"agent"` // an agent runs on it, as on NODE
	Spec  Object `json:"spec"`  // patched onto its own
}

// Volume says what the volume is that is moved. A backed up pod or a restored pod has an emptyDir unless Claim is set.
type Volume struct {
	Claim bool `json:"claim"` // of a pod volume: it is a claim's, of the simulated CSI driver
	Block bool `json:"block"` // the claim has volumeMode Block
	// Late is a claim that is bound only once it has a consumer (WaitForFirstConsumer).
	Late bool `json:"late"`
	// Unready is a snapshot that is never ready.
	Unready  bool `json:"unready"`
	Retained bool `json:"retained"` // the class of the snapshot has deletionPolicy Retain
	// Grouped is a snapshot of a VolumeGroupSnapshot, as Velero's server leaves it: without its group, and without a class.
	Grouped bool `json:"grouped"`
	// Existing is a volume that the target of a DataDownload has had. Velero's server has retained it and deleted its claim, and
	// the transfer of the case names it as $VOLUME.
	Existing bool `json:"existing"`
}

func (v Volume) setMode(claim *corev1.PersistentVolumeClaim) {
	if v.Block {
		claim.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	}
}

// Mover says how movers behave, which move for Takes what makes 1000 bytes.
type Mover struct {
	Takes  metav1.Duration `json:"takes"` // 0: 200 ms
	Starts metav1.Duration `json:"starts"`
	Silent bool            `json:"silent"` // it never says that the data path has started, nor hears a cancel
	Result *node.Result    `json:"result"` // instead of success
	Never  bool            `json:"never"`  // its container stays in ContainerCreating
	// Waiting keeps its container from starting, Refused the kubelet from admitting it, Times how often; 0: always.
	Waiting *node.Waiting `json:"waiting"`
	Refused *node.Waiting `json:"refused"`
	Times   int           `json:"times"`
}

// Step is one thing that happens; exactly one of its fields is set.
type Step struct {
	Phase  testenv.Phase   `json:"phase"`  // wait until the resource is in it
	Seen   Object          `json:"seen"`   // wait until there is such an object
	Second testenv.Phase   `json:"second"` // make a second resource for the same volume, and wait until it is in that phase
	Cancel bool            `json:"cancel"` // ask for the end of the transfer
	Delete bool            `json:"delete"` // delete the resource
	Force  bool            `json:"force"`  // delete the resource without heeding its finalizers
	Vanish bool            `json:"vanish"` // the mover is gone without a trace
	Evict  string          `json:"evict"`  // the kubelet ends the mover, with that message
	Agent  string          `json:"agent"`  // "ends" or "starts"
	Remove Object          `json:"remove"` // delete that object
	Apply  Object          `json:"apply"`  // make or change that object
	Set    Object          `json:"set"`    // patch the resource
	Wait   metav1.Duration `json:"wait"`   // let time pass
}

// Cases are all cases, in the order of the kinds.
func Cases() ([]*Case, error) {
	var all []*Case
	for _, kind := range kinds() {
		files, err := fs.Glob(cases, "cases/"+strings.ToLower(string(kind))+"/*.yaml")
		if err != nil {
			return nil, fmt.Errorf("list cases of %s: %w", kind, err)
		}
		for _, file := range files {
			text, err := fs.ReadFile(cases, file)
			if err != nil {
				return nil, fmt.Errorf("read case: %w", err)
			}
			c, err := parse(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			c.Title = strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".yaml"), "-", " ")
			c.Kind = kind
			all = append(all, c)
		}
	}
	return all, nil
}

// parse reads a case strictly: a field that is not known is an error, and so is a case that shows or asserts nothing.
func parse(text []byte) (*Case, error) {
	c := &Case{}
	if err := yaml.UnmarshalStrict(text, c); err != nil {
		return nil, err
	}
	if len(c.Shows) == 0 {
		return nil, errors.New("shows: name the sections or W-numbers of docs/velero-protocol.md that this shows")
	}
	wanted := slices.Concat(c.Made, c.Never, c.Left, c.Gone)
	for _, sort := range c.AtOnce {
		wanted = append(wanted, sort.Of)
	}
	if len(wanted) == 0 {
		return nil, errors.New("made, never, left, gone: say what becomes of at least one object besides the resource")
	}
	steps := slices.Clone(c.Happens)
	for _, request := range c.Requests {
		steps = append(append(steps, request.Before...), request.After...)
	}
	for i, step := range steps {
		if set := fields(step); set != 1 {
			return nil, fmt.Errorf("step %d of all: want exactly one thing, have %d", i+1, set)
		}
	}
	for _, object := range wanted {
		if _, err := kindOf(object); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// fields is how many fields of a step are set.
func fields(step Step) (set int) {
	for _, value := range reflect.ValueOf(step).Fields() {
		if !value.IsZero() {
			set++
		}
	}
	return set
}

// NeedsRealControlPlane reports whether the case needs the agent of a release of Velero, or objects that the embedded cluster lacks.
func (c *Case) NeedsRealControlPlane() bool {
	return c.Begins != "" || slices.ContainsFunc(c.Given, func(object Object) bool { return object["kind"] == "ResourceQuota" })
}

// movers is how many movers the case wants.
func (c *Case) movers() int {
	if c.maintains() {
		return 0
	}
	return ptr.Deref(c.Movers, 1)
}

// match returns how an object is unlike the part of it that is wanted; nothing if it is like that. A map wants its
// keys, each element of a list wants one that is like it, an empty list or null wants nothing to be there, a text that
// begins with "~" is a regular expression, and everything else is to be equal.
func match(want, have any, at string) []string {
	switch want := want.(type) {
	case map[string]any:
		return matchMap(want, have, at)
	case []any:
		return matchList(want, have, at)
	case nil:
		if !absent(have) {
			return []string{fmt.Sprintf("%s is %s, want none", at, brief(have))}
		}
	case string:
		text, isText := have.(string)
		if pattern, ok := strings.CutPrefix(want, "~"); ok {
			return matchPattern(pattern, have, at)
		}
		if !isText || text != want {
			return []string{fmt.Sprintf("%s is %s, want %q", at, brief(have), want)}
		}
	default:
		if brief(want) != brief(have) {
			return []string{fmt.Sprintf("%s is %s, want %s", at, brief(have), brief(want))}
		}
	}
	return nil
}

func matchPattern(pattern string, have any, at string) []string {
	found, err := regexp.MatchString(pattern, asText(have))
	switch {
	case err == nil && found:
		return nil
	case absent(have):
		return []string{fmt.Sprintf("%s is %s", at, brief(have))}
	default:
		return []string{fmt.Sprintf("%s is %s, want something like %q", at, brief(have), pattern)}
	}
}

func matchMap(want map[string]any, have any, at string) (unlike []string) {
	fields, _ := have.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		unlike = append(unlike, match(want[key], fields[key], strings.TrimPrefix(at+"."+key, "."))...)
	}
	return unlike
}

func matchList(want []any, have any, at string) (unlike []string) {
	elements, _ := have.([]any)
	if len(want) == 0 && !absent(have) {
		return []string{fmt.Sprintf("%s is %s, want none", at, brief(have))}
	}
	for i, element := range want {
		unlike = append(unlike, nearest(element, elements, fmt.Sprintf("%s[%d]", at, i))...)
	}
	return unlike
}

// nearest is how the element that is most like the one wanted is unlike it; nothing if one is like that.
func nearest(want any, elements []any, at string) (fewest []string) {
	for _, element := range elements {
		unlike := match(want, element, at)
		if len(unlike) == 0 {
			return nil
		}
		if fewest == nil || len(unlike) < len(fewest) {
			fewest = unlike
		}
	}
	if _, scalar := want.(string); scalar || fewest == nil {
		return []string{fmt.Sprintf("%s is missing: %s", at, brief(want))}
	}
	return fewest
}

// absent says that there is nothing: no field, or an empty one.
func absent(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case string:
		return value == ""
	case []any:
		return len(value) == 0
	case map[string]any:
		return len(value) == 0
	default:
		return false
	}
}

// asText is what a regular expression is held against: a text, or the JSON of what is none.
func asText(value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	if value == nil {
		return ""
	}
	return inJSON(value)
}

// mostShown is how many bytes of a value an error tells.
const mostShown = 300

// brief is a value as JSON, cut where it gets long.
func brief(value any) string {
	if value == nil {
		return "absent"
	}
	return truncate.End(inJSON(value), mostShown)
}

func inJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// placeholders maps the $WORDS of a case to the names of this run.
type placeholders struct {
	lock  sync.RWMutex
	names map[string]string
}

// of returns the name of a placeholder; "" if it is not known yet.
func (p *placeholders) of(word string) string {
	p.lock.RLock()
	defer p.lock.RUnlock()
	return p.names[word]
}

func (p *placeholders) set(word, name string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.names == nil {
		p.names = map[string]string{}
	}
	p.names[word] = name
}

func (p *placeholders) all() map[string]string {
	p.lock.RLock()
	defer p.lock.RUnlock()
	return maps.Clone(p.names)
}

// expand replaces the $WORDS in the texts and keys of an object.
func expand(value any, description map[string]string) any {
	switch value := value.(type) {
	case string:
		return os.Expand(value, func(word string) string {
			if known, ok := description[word]; ok {
				return known
			}
			return "$" + word
		})
	case []any:
		expanded := make([]any, len(value))
		for i, element := range value {
			expanded[i] = expand(element, description)
		}
		return expanded
	case map[string]any:
		expanded := make(map[string]any, len(value))
		for key, element := range value {
			expanded[expand(key, description).(string)] = expand(element, description) //nolint:forcetypeassert // a text stays one
		}
		return expanded
	default:
		return value
	}
}

// expand replaces the placeholders of an object of the case.
func (c *caseRun) expand(object Object) Object {
	return expand(map[string]any(object), c.placeholders.all()).(map[string]any) //nolint:forcetypeassert // a map stays one
}

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
		return fmt.Errorf("%s: %s has no recorded result; run: make conformance AGENT=lateen CASES='%s/%s'", c.Kind, c.Title, c.Kind, c.Title) //nolint:err113 // for people
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
