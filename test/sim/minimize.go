package sim

import "slices"

// Minimize removes faults and work from a plan as long as play still returns an error.
func Minimize(plan Plan, play func(Plan) error) Plan {
	for smaller := true; smaller; {
		smaller = false
		for i := range plan.Faults {
			less := plan
			less.Faults = slices.Delete(slices.Clone(plan.Faults), i, i+1)
			if play(less) != nil {
				plan, smaller = less, true
				break
			}
		}
		for i := 0; !smaller && i < len(plan.Work) && len(plan.Work) > 1; i++ {
			less := plan
			less.Work = slices.Delete(slices.Clone(plan.Work), i, i+1)
			if play(less) != nil {
				plan, smaller = less, true
			}
		}
	}
	if calm := plan; !plan.Hurry {
		if calm.Hurry = true; play(calm) != nil {
			plan = calm
		}
	}
	return plan
}
