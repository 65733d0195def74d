package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// sources are the packages of the product by folder: the text of their files without tests.
func sources(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, top := range []string{"cmd", "deploy", "exposer", "informers", "metrics", "reconcile"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			folder, err := filepath.Rel(root, filepath.Dir(path))
			all[folder] += string(text)
			return err
		}))
	}
	return all
}

// source is the text of the whole product.
func source(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, text := range sources(t) {
		all.WriteString(text)
	}
	return all.String()
}

// first are the first groups of all matches.
func first(pattern, text string) (all []string) {
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// The table of packages has each package of the product, and no other.
func TestEveryPackageIsInTheArchitecture(t *testing.T) {
	_, table, found := strings.Cut(page(t, "architecture").text, "\n## Packages\n")
	require.True(t, found)
	var folders []string
	for folder := range sources(t) {
		folders = append(folders, folder)
	}
	require.ElementsMatch(t, folders, first("(?m)^\\| `([a-z/]+)` \\|", table))
}

func TestEveryReasonOfAnEventIsDescribed(t *testing.T) {
	product := source(t)
	require.Empty(t, first(`([rR]ecorder\.Eventf?\([^"\n]*, corev1\.EventType\w+, ".*)`, product), "an Event's reason is a constant named Event…")
	var described []string
	for _, row := range rows(page(t, "metrics").section(t, "Events")) {
		described = append(described, codes(row[1])...)
	}
	known := first(`\bEvent\w+ += "(\w+)"`, product)
	require.NotEmpty(t, known)
	require.Equal(t, sorted(known), sorted(described), "docs/metrics.md: the second column of Events has their reasons")
}

// Every message that docs/troubleshooting.md quotes is one of the program.
func TestMessagesInTroubleshootingExist(t *testing.T) {
	product, quoted := source(t), 0
	for _, row := range rows(page(t, "troubleshooting").section(t, "Troubleshooting")) {
		require.Len(t, row, 3, row[0])
		for _, part := range codes(row[0]) {
			quoted++
			if !strings.Contains(product, part) { // which is too long to print
				require.Failf(t, "no message of the program has what docs/troubleshooting.md quotes", "%q", part)
			}
		}
	}
	require.NotZero(t, quoted)
}

// A loss reason that is not listed has no series before it happens. The alert names the reason, and its runbook says what to do.
func TestEveryLossReasonIsListedAndSetAndInTheRunbook(t *testing.T) {
	all := sources(t)
	declared := first(`\bLost\w+ +LossReason = "(\w+)"`, all["exposer/objects"])
	_, runbook, found := strings.Cut(page(t, "runbooks").text, "\n## LateenMoversRestart\n")
	require.True(t, found)
	runbook, _, _ = strings.Cut(runbook, "\n## ")
	var listed []string
	for _, reason := range objects.LostReasons() {
		listed = append(listed, string(reason))
		require.Contains(t, runbook, "`"+reason+"`", "the runbook of LateenMoversRestart lacks it")
	}
	require.ElementsMatch(t, declared, listed)
	for _, name := range first(`\b(Lost\w+) +LossReason = "`, all["exposer/objects"]) {
		uses := strings.Count(all["exposer/objects"]+all["reconcile/transfer"], name)
		require.Greater(t, uses, 2, "no mover is lost for %s: it is only declared and listed", name)
	}
}

// The product uses switches and the methods of transfer.Phase. The linter reports a switch without a new phase, and
// TestEveryPhaseIsClassified in reconcile/transfer a method without it. Nothing else reports a comparison or a list.
func TestPhasesAreComparedByTheirMethodsOnly(t *testing.T) {
	var names []string
	for _, phase := range transfer.Phases() {
		names = append(names, string(phase))
	}
	methods := regexp.MustCompile(`(?m)^func (\(\w+ Phase\) |Phases\()(.*\{ .* \}$|(?s:.*?)^\}$)`)
	for folder, text := range sources(t) {
		phase := `transfer\.(` + strings.Join(names, "|") + `)\b`
		if folder == "reconcile/transfer" {
			require.Greater(t, len(methods.FindAllString(text, -1)), len(names), "methods of Phase")
			text, phase = methods.ReplaceAllString(text, ""), strings.TrimPrefix(phase, `transfer\.`)
		}
		used := regexp.MustCompile(`.*([=!]= |Phase\{([^}]*, )?)` + phase + `.*|.*\b` + phase + ` [=!]=.*`)
		require.Empty(t, used.FindAllString(text, -1), "%s: compare by a method of transfer.Phase, or list all phases in a switch", folder)
	}
}
