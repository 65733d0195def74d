package configmap

import "strings"

// suggestion names the closest known name of an unknown one. At most a third of the known name may differ. If none is
// close, it lists all known names.
func suggestion(unknown string, known []string) string {
	best, nearest := "", len(unknown)
	for _, name := range known {
		d := editDistance(strings.ToLower(quote(unknown)), strings.ToLower(name))
		if d <= len(name)/3 && d < nearest {
			best, nearest = name, d
		}
	}
	if best == "" {
		return "known fields: " + OneOf(known)
	}
	return "did you mean " + best + "?"
}

// editDistance counts the bytes to change, add or drop between two words (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a[:i] to each b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// OneOf joins words as "a, b or c".
func OneOf(description []string) string {
	last := len(description) - 1
	if last < 1 {
		return strings.Join(description, "")
	}
	return strings.Join(description[:last], ", ") + " or " + description[last]
}
