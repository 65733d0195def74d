package transfer

// stride is a prime larger than the number of situations: steps of it visit each of them once, and
// soon one of every kind, so that a mistake shows early.
const stride = 15_485_863

// walk looks at every situation until look says no, and tells how many it looked at.
func walk(next decide, look func(*moment) bool) int {
	all := spaces()
	total := 0
	for _, s := range all {
		total += s.size
	}
	var m moment
	for count, number := 0, 0; count < total; count++ {
		number = (number + stride) % total
		s, within := locate(all, number)
		s.at(within, &m)
		m.Step = next(m.State, m.Seen, m.Limits)
		if !look(&m) {
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
