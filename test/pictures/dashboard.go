package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	dashboardFile  = "deploy/monitoring/lateen.json"
	dashboardShown = "docs/pictures/dashboard.json" // what `make dashboard` has recorded
)

// panel is a panel of Grafana's dashboard, with what was recorded for it.
type panel struct {
	Title   string
	Type    string
	GridPos struct{ X, Y, W, H int }
	Config  struct{ Defaults struct{ Unit string } } `json:"fieldConfig"`
	Series  []series
}

// series has one value each step; nil is a gap.
type series struct {
	Legend string
	Values []*float64
}

// readPanels reads the dashboard and what was recorded for each panel, and the seconds between two values.
func readPanels(root string) (panels []panel, step float64, err error) {
	var dashboard struct{ Panels []panel }
	var shown struct {
		Step   float64
		Panels []panel
	}
	for name, into := range map[string]any{dashboardFile: &dashboard, dashboardShown: &shown} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read %s: %w", name, err)
		}
	}
	for i, each := range dashboard.Panels {
		at := slices.IndexFunc(shown.Panels, func(one panel) bool { return one.Title == each.Title })
		if at < 0 {
			return nil, 0, fmt.Errorf("find panel %q in %s: run make dashboard", each.Title, dashboardShown)
		}
		dashboard.Panels[i].Series = shown.Panels[at].Series
	}
	return dashboard.Panels, shown.Step, nil
}

// Sizes of Grafana's grid in the picture, in pixels.
const (
	cellWidth, cellHeight = 40, 22
	gridGap               = 4
)

// dashboardPicture draws the panels in the grid of the dashboard.
func dashboardPicture(root string) ([]byte, error) {
	panels, step, err := readPanels(root)
	if err != nil {
		return nil, err
	}
	rows := 0
	for _, each := range panels {
		rows = max(rows, each.GridPos.Y+each.GridPos.H)
	}
	const columns = 24
	c := newCanvas(columns*cellWidth+gridGap, rows*cellHeight+gridGap)
	for _, each := range panels {
		at := point{each.GridPos.X*cellWidth + gridGap, each.GridPos.Y*cellHeight + gridGap}
		width, height := each.GridPos.W*cellWidth-gridGap, each.GridPos.H*cellHeight-gridGap
		c.rect(at, width, height, plain)
		title := c.title(each.Title, point{at.x + 8, at.y + 16}, width-16)
		switch {
		case len(each.Series) == 0:
			c.text(point{at.x + width/2, at.y + height/2 + 8}, "middle", small, "No data")
		case each.Type == "stat":
			value := last(each.Series[0].Values)
			c.text(point{at.x + width/2, at.y + height - 14}, "middle", ` font-size="28"`, withUnit(value, each.Config.Defaults.Unit))
		case each.Type == "table":
			for i, row := range each.Series {
				for j, cell := range strings.Fields(row.Legend) {
					c.text(point{at.x + 8, at.y + title + 24 + lineHeight*(4*i+j)}, "start", small, cell)
				}
			}
		default:
			c.lines(each, step, point{at.x + 52, at.y + title + 16}, width-64, height-title-16)
		}
	}
	return c.image("Dashboard of Lateen during backups"), nil
}

// lines draws the series of a panel, which has no negative values, on the same axes, with a legend below.
func (c *canvas) lines(p panel, step float64, at point, width, height int) {
	// The legend has no place for all: those that are 0 come last.
	slices.SortStableFunc(p.Series, func(a, b series) int { return cmp.Compare(highest(b.Values), highest(a.Values)) })
	legend := c.legend(p.Series, point{at.x - 44, at.y + height}, width+48)
	height -= legend + 28 // the time axis has a line of text
	top, count := 0.0, 2
	for _, each := range p.Series {
		top, count = max(top, highest(each.Values)), max(count, len(each.Values))
	}
	top = cmp.Or(top, 1)
	for i := range 3 {
		y := at.y + height - i*height/2
		fmt.Fprintf(&c.body, `<path d="M%d %d H%d" stroke="%s" stroke-opacity="0.3"/>`+"\n", at.x, y, at.x+width, faint)
		c.text(point{at.x - 5, y + 4}, "end", axis, withUnit(float64(i)*top/2, p.Config.Defaults.Unit))
	}
	c.text(point{at.x, at.y + height + 14}, "start", axis, "0 s")
	c.text(point{at.x + width, at.y + height + 14}, "end", axis, withUnit(step*float64(count-1), "s"))
	for i, each := range p.Series {
		var path strings.Builder
		command := "M"
		for j, value := range each.Values {
			if value == nil {
				command = "M"
				continue
			}
			x := float64(at.x) + float64(width)*float64(j)/float64(count-1)
			y := float64(at.y) + float64(height)*(1-*value/top)
			if command == "M" { // a single value is a dot
				fmt.Fprintf(&path, "M%.1f %.1fh0", x, y)
			} else {
				fmt.Fprintf(&path, "L%.1f %.1f", x, y)
			}
			command = "L"
		}
		fmt.Fprintf(&c.body, `<path d="%s" fill="none" stroke="%s" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round"/>`+"\n", path.String(), lineColor(i))
	}
}

const (
	axis        = ` font-size="9"`
	legendLimit = 6
)

// legend names the series, bottom up from a place, and returns its height.
func (c *canvas) legend(all []series, at point, width int) int {
	const letter, row, columns = 6, 13, 2
	shown := min(len(all), legendLimit)
	rows := (shown + columns - 1) / columns
	for i, each := range all[:shown] {
		x, y := at.x+i%columns*width/columns, at.y-8-(rows-1-i/columns)*row
		text := each.Legend
		if i == legendLimit-1 && len(all) > legendLimit {
			text = fmt.Sprintf("… %d more", len(all)-i)
		} else {
			fmt.Fprintf(&c.body, `<path d="M%d %d h10" stroke="%s" stroke-width="3"/>`+"\n", x, y-3, lineColor(i))
		}
		most := (width/columns - 16) / letter
		if len(text) > most {
			text = text[:most-1] + "…"
		}
		c.text(point{x + 14, y}, "start", axis, text)
	}
	return rows * row
}

// lineColor returns the color of a series. The colors differ in lightness too.
func lineColor(i int) string {
	colors := []string{"#1f6fc4", "#d9822b", "#2f8f4e", "#b23a48", "#7b4fa3", "#5f6b76"}
	return colors[i%len(colors)]
}

// title writes the title of a panel and returns its height.
func (c *canvas) title(text string, at point, width int) int {
	const letter, row = 7.7, 13
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		line := strings.TrimSpace(lines[len(lines)-1] + " " + word)
		if float64(len(line))*letter > float64(width) && len(lines[len(lines)-1]) > 0 {
			lines, line = append(lines, ""), word
		}
		lines[len(lines)-1] = line
	}
	for i, line := range lines {
		c.text(point{at.x, at.y + i*row}, "start", bold+small, line)
	}
	return len(lines) * row
}

// highest returns the highest value above 0; 0 if there is none.
func highest(values []*float64) (most float64) {
	for _, value := range values {
		if value != nil {
			most = max(most, *value)
		}
	}
	return most
}

func last(values []*float64) float64 {
	for _, value := range slices.Backward(values) {
		if value != nil {
			return *value
		}
	}
	return 0
}

// withUnit formats a value with a unit of Grafana: s, bytes, reqps or short.
func withUnit(value float64, unit string) string {
	const kibi = 1024
	suffix := map[string]string{"s": " s", "reqps": "/s"}[unit]
	if unit == "bytes" {
		suffix = " B"
		for _, larger := range []string{" KiB", " MiB", " GiB"} {
			if math.Abs(value) >= kibi {
				value, suffix = value/kibi, larger
			}
		}
	}
	const hundred = 100
	if math.Abs(value) >= hundred {
		value = math.Round(value)
	} else {
		value, _ = strconv.ParseFloat(strconv.FormatFloat(value, 'g', 3, 64), 64) // it was formatted here
	}
	return strconv.FormatFloat(value, 'f', -1, 64) + suffix
}
