package adopt

import "slices"

// diff returns the lines of both texts: removed lines with a -, added lines with a +, and context lines around them.
// The longest common subsequence counts as unchanged.
func diff(before, after []string) []string {
	common := make([][]int, len(before)+1) // its length for before[i:] and after[j:]
	for i := range common {
		common[i] = make([]int, len(after)+1)
	}
	for i, old := range slices.Backward(before) {
		for j, line := range slices.Backward(after) {
			if old == line {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var lines []string
	for i, j := 0, 0; i < len(before) || j < len(after); {
		switch {
		case i < len(before) && j < len(after) && before[i] == after[j]:
			lines = append(lines, "  "+before[i])
			i, j = i+1, j+1
		case j == len(after) || i < len(before) && common[i+1][j] >= common[i][j+1]:
			lines = append(lines, "- "+before[i])
			i++
		default:
			lines = append(lines, "+ "+after[j])
			j++
		}
	}
	return around(lines)
}

// around drops the lines that are more than two lines away from any change.
func around(lines []string) []string {
	const context = 2
	near := make([]bool, len(lines))
	for i, line := range lines {
		if line[0] == ' ' {
			continue
		}
		for j := max(0, i-context); j <= min(len(lines)-1, i+context); j++ {
			near[j] = true
		}
	}
	var kept []string
	for i, line := range lines {
		switch {
		case near[i]:
			kept = append(kept, line)
		case i > 0 && near[i-1]:
			kept = append(kept, "  …")
		}
	}
	return kept
}
