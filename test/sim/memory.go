package sim

import (
	"fmt"
	"slices"
	"testing/synctest"
	"time"
)

// checkMetrics checks that no terminal transfer was counted twice. An agent that dies may not have counted one.
func (s *Simulation) checkMetrics(ended int) error {
	counted, maintained := 0, 0
	for _, p := range s.processes {
		families, err := p.registry.Gather()
		if err != nil {
			return fmt.Errorf("gather metrics of %s: %w", p.name, err)
		}
		for _, family := range families {
			for _, series := range family.GetMetric() {
				switch family.GetName() {
				case "lateen_transfers_finished_total":
					counted += int(series.GetCounter().GetValue())
				case "velero_repo_maintenance_success_total", "velero_repo_maintenance_failure_total":
					maintained += int(series.GetCounter().GetValue())
				}
			}
		}
	}
	calm := !slices.Contains(s.faults.met, killAgent) && !slices.Contains(s.faults.met, loseAnswer) && !slices.Contains(s.faults.met, cutAgent) && !slices.Contains(s.faults.met, killCoordinator) && !slices.Contains(s.faults.met, killAgents) && !slices.Contains(s.faults.met, cutCoordinator) && !slices.Contains(s.faults.met, delayRequest) && !slices.Contains(s.faults.met, deleteIt)
	switch {
	case calm && counted != ended:
		return fmt.Errorf("%d transfers have ended and agents counted %d", ended, counted)
	case counted > len(s.work):
		return fmt.Errorf("agents counted %d of %d transfers", counted, len(s.work))
	case maintained > s.jobs():
		return fmt.Errorf("agents counted %d runs of %d maintenance jobs", maintained, s.jobs())
	}
	return nil
}

// checkMemory checks that no agent holds anything for a transfer that has ended, once it knows all that has happened.
// What is left of goroutines makes the end of the bubble fail.
func (s *Simulation) checkMemory() error {
	s.quiesce()
	empty := []string{"lateen_slots_in_use", "lateen_unattended_transfers", "lateen_mover_max_silence_seconds", "lateen_transfer_oldest_age_seconds"}
	if len(s.API.List("jobs")) == 0 {
		empty = append(empty, "lateen_maintenance_running")
	}
	if len(s.API.List("backuprepositories")) == 0 {
		empty = append(empty, "lateen_maintenance_due")
	}
	for _, p := range s.processes {
		if !p.alive() || p.cut {
			continue
		}
		families, err := p.registry.Gather()
		if err != nil {
			return fmt.Errorf("gather metrics of %s: %w", p.name, err)
		}
		for _, family := range families {
			if !slices.Contains(empty, family.GetName()) {
				continue
			}
			for _, series := range family.GetMetric() {
				if value := series.GetGauge().GetValue(); value != 0 {
					return fmt.Errorf("%s of %s is %v after every transfer has ended: %s", family.GetName(), p.name, value, series)
				}
			}
		}
	}
	return nil
}

// quiesce lets agents observe what has happened: watches that broke are opened again after a while.
func (s *Simulation) quiesce() {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		<-time.After(time.Microsecond)
		synctest.Wait()
		s.tidy()
		all := append(append(s.requests(), s.late()...), s.deliveries()...)
		for _, p := range s.processes {
			if p.alive() {
				all = append(all, s.reconciles(p)...)
			}
		}
		if len(all) == 0 {
			s.sleep(true)
			continue
		}
		one := all[s.random.IntN(len(all))]
		s.step++
		s.trace.add(s.step, time.Since(s.begin), one.name)
		one.do()
	}
}
