package status

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/exposer/api"
)

// readTimeout is the limit for the first answers about all resources, and about what transfers depend on.
const readTimeout = 30 * time.Second

// Minimum and maximum time between two drawings of --watch.
const (
	minInterval = time.Second
	maxInterval = 10 * time.Second
)

// Request limits for one read, which sends all requests concurrently.
const (
	requestQPS   = 50
	requestBurst = 100
)

// viewer reads a cluster for `lateen status` and `lateen explain`.
type viewer struct{ cli.View }

func newViewer(command *cobra.Command, userAgent string) *viewer {
	v := &viewer{}
	v.UserAgent = userAgent
	v.AddFlags(command.Flags())
	return v
}

func (v *viewer) watchOptions(of *clients) watchOptions {
	return watchOptions{
		Namespace: v.Namespace, Sources: of.sources(v.Namespace), Clock: clock.RealClock{},
		MinInterval: minInterval, MaxInterval: maxInterval, SyncTimeout: readTimeout,
	}
}

// clients returns the clients of the cluster that the flags select.
func (v *viewer) clients() (*clients, error) {
	connection, err := v.Config()
	if err != nil {
		return nil, err
	}
	connection.QPS, connection.Burst = requestQPS, requestBurst
	return newClients(connection)
}

// NewCommand returns `lateen status`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	var at *viewer
	var watch bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Show running and waiting transfers, and what they wait for",
		Long: "Show running and waiting transfers and what they wait for, the priority classes in force, the agents, and the last\n" +
			"maintenance of repositories. The command changes nothing. Resources that could not be read are listed at the end.\n" +
			"With --watch, it continues until it is interrupted.",
		Example: "  lateen status --watch\n" +
			"  lateen status -n velero -o json",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			clients, err := at.clients()
			if err != nil {
				return err
			}
			if watch {
				return at.watch(command.Context(), clients, command.OutOrStdout())
			}
			snapshot, err := clients.Read(command.Context(), at.watchOptions(clients), diagnose.Reference{})
			if err != nil {
				return err
			}
			if err := snapshot.Installed(); err != nil {
				return err
			}
			report := snapshot.Report()
			return at.Print(command.OutOrStdout(), report, report.Write)
		},
	}
	at = newViewer(command, userAgent)
	command.Flags().BoolVarP(&watch, "watch", "w", false, "update the output when something changes, at most once a second")
	return command
}

// watch redraws the status in place in a terminal, and appends it to other outputs. JSON is one line per status, YAML one document.
func (v *viewer) watch(ctx context.Context, clients *clients, to io.Writer) error {
	klog.SetLogger(logr.Discard()) // the drawing shows failures
	return clients.Follow(ctx, v.watchOptions(clients), func(snapshot *diagnose.Snapshot) error {
		report := snapshot.Report()
		var text bytes.Buffer
		var err error
		switch v.Output {
		case cli.JSON:
			err = json.NewEncoder(&text).Encode(report)
		case cli.YAML:
			text.WriteString("---\n")
			err = v.Output.Print(&text, report)
		default:
			err = report.Write(&text)
		}
		if err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		reported := text.String()
		switch rows := terminalRows(to); { // read each time: a window may be resized
		case rows > 0:
			reported = redraw(reported, rows)
		case v.Output == "":
			reported += "\n"
		}
		_, err = io.WriteString(to, reported)
		return err
	})
}

// redraw returns text that overwrites the screen of a terminal with that many rows. It starts at the top, clears each
// line to its end, and clears the rest of the screen. It never clears first, so nothing flickers. It never scrolls:
// the terminal cuts long lines, and the last line counts those that do not fit (ECMA-48: CUP, EL, ED; DEC: DECAWM).
func redraw(text string, rows int) string {
	const home, clearLine, clearBelow, wrapOff, wrapOn = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[?7l", "\x1b[?7h"
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	lines[len(lines)-1] += "\n"
	if most := max(rows-1, 1); len(lines) > most { // the cursor needs the last row
		more := len(lines) - most + 1
		lines = append(lines[:most-1:most-1], fmt.Sprintf("… %d more lines: enlarge the terminal, or remove --watch\n", more))
	}
	return home + wrapOff + strings.ReplaceAll(strings.Join(lines, ""), "\n", clearLine+"\n") + clearBelow + wrapOn
}

// terminalRows returns the number of rows of a terminal; 0 if the output is no terminal.
func terminalRows(to io.Writer) int {
	terminal := cli.TerminalOf(to)
	if terminal == nil {
		return 0
	}
	const usual = 24 // if the terminal does not report its size
	if _, rows, err := term.GetSize(int(terminal.Fd())); err == nil && rows > 0 {
		return rows
	}
	return usual
}

// completionTimeout bounds how long a shell waits for the names of a completion.
const completionTimeout = 3 * time.Second

// NewExplainCommand returns `lateen explain`. The user agent is that of all its requests.
func NewExplainCommand(userAgent string) *cobra.Command {
	var at *viewer
	command := &cobra.Command{
		Use:   "explain KIND/NAME",
		Short: "Show the timeline of one transfer, and why it waits or failed",
		Long: "Show the timeline of one transfer, from its status, its mover, its volumes and snapshots, and Events. Then show what\n" +
			"it waits for or why it failed, and what to do. Kinds are podvolumebackup (pvb),\n" +
			"podvolumerestore (pvr), dataupload (du), datadownload (dd), and backuprepository (br).",
		Example: "  lateen explain pvb/nightly-x7k2p\n" +
			"  lateen explain dataupload/nightly-x7k2p -o yaml",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(command *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return at.references(command.Context(), diagnose.Explained(), typed)
		},
		RunE: func(command *cobra.Command, args []string) error {
			of, err := diagnose.ParseReference(args[0])
			if err != nil {
				return err
			}
			clients, err := at.clients()
			if err != nil {
				return err
			}
			snapshot, err := clients.Read(command.Context(), at.watchOptions(clients), of)
			if err != nil {
				return err
			}
			timeline, err := snapshot.Timeline(of)
			if err != nil {
				return err
			}
			return at.Print(command.OutOrStdout(), timeline, timeline.Write)
		},
	}
	at = newViewer(command, userAgent)
	return command
}

// references completes KIND/NAME: first one of the kinds, then the names of that kind in the cluster.
func (v *viewer) references(ctx context.Context, kinds []api.Kind, typed string) ([]string, cobra.ShellCompDirective) {
	kind, _, named := strings.Cut(typed, "/")
	if !named {
		var all []string
		for _, each := range kinds {
			all = append(all, each.ShortName+"/")
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	of, err := diagnose.ParseReference(kind + "/x") // any name
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	connection, err := v.Config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	client, err := dynamic.NewForConfig(connection)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	list, err := client.Resource(of.APIKind().GVR()).Namespace(v.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var all []string
	for _, object := range list.Items {
		all = append(all, kind+"/"+object.GetName())
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// CompleteTransfers completes each argument of a command as KIND/NAME of a transfer.
func CompleteTransfers(view *cli.View) cobra.CompletionFunc {
	return func(command *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return (&viewer{*view}).references(command.Context(), api.Kinds(), typed)
	}
}
