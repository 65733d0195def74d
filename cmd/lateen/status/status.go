// Package status reads a cluster for `lateen status` and `lateen explain`, once or with watches. It never changes an
// object and sends no request to an agent.
package status
