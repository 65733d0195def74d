package transfer

// stride is a prime larger than the number of situations. Steps of this size visit each situation once. They reach
// one of every kind early, so that a mistake shows soon.
const stride = 15_485_863

// walk calls visit for every situation until visit returns false, and returns the number of calls.
func walk(visit func(*situation) bool) int {
	all := spaces()
	total := 0
	for _, s := range all {
		total += s.size
	}
	var m situation
	for count, number := 0, 0; count < total; count++ {
		number = (number + stride) % total
		s, within := locate(all, number)
		s.at(within, &m)
		m.Step = Next(m.State, m.Observed, m.Limits)
		if !visit(&m) {
			return count + 1
		}
	}
	return total
}

func locate(all []space, number int) (found space, within int) {
	for _, s := range all {
		if number < s.size {
			return s, number
		}
		number -= s.size
	}
	return space{}, 0
}
