package agent

import (
	"maps"
	"slices"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// jobProblems are the Problems of the maintenance jobs of each repository, by its key, as of the last read. The
// maintenance ConfigMap takes effect without a restart, so they change while an agent coordinates.
type jobProblems map[string][]configmap.Problem

// replace stores the Problems of a repository and drops repositories that no longer exist. It returns the Problems
// that no repository had before.
func (j jobProblems) replace(key string, read []configmap.Problem, exists func(key string) bool) (added []configmap.Problem) {
	maps.DeleteFunc(j, func(key string, _ []configmap.Problem) bool { return !exists(key) })
	before := j.all()
	j[key] = read
	return slices.DeleteFunc(slices.Clone(read), func(problem configmap.Problem) bool { return slices.Contains(before, problem) })
}

// all returns the Problems of every repository without duplicates.
func (j jobProblems) all() []configmap.Problem {
	var all []configmap.Problem
	for _, problems := range j {
		for _, problem := range problems {
			if !slices.Contains(all, problem) {
				all = append(all, problem)
			}
		}
	}
	return all
}

// showProblems sets the gauge of a section to its current Problems.
func (a *assembly) showProblems(section configmap.Section, problems []configmap.Problem) {
	counts := map[string]int{}
	for _, reason := range configmap.Reasons() {
		counts[string(reason)] = 0
	}
	for _, problem := range problems {
		if problem.Section == section {
			counts[string(problem.Reason)]++
		}
	}
	a.Metrics.ConfigProblems(string(section), counts)
}
