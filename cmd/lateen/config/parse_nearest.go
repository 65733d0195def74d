package config

import "strings"

// suggestion says which known name is meant by one that is not, or names all if none comes close: at
// most a third of the known name may differ.
func suggestion(unknown string, known []string) string {
	best, nearest := "", len(unknown)
	for _, name := range known {
		d := editDistance(strings.ToLower(truncate(unknown)), strings.ToLower(name))
		if d <= len(name)/3 && d < nearest {
			best, nearest = name, d
		}
	}
	if best == "" {
		return "known here: " + oneOf(known)
	}
	return "do you mean " + best + "?"
}

// editDistance is how many bytes must be changed, added or dropped to make one word of the other
// (Levenshtein).
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
