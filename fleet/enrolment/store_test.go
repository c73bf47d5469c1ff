package enrolment_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

const (
	uuid1 = "5f0c0f4e-6f0a-4c7e-9d0e-2d6f1f7a9b10"
	uuid2 = "00000000-6f0a-4c7e-9d0e-2d6f1f7a9b10"
)

var testKey = []byte("0123456789abcdef0123456789abcdef")

// admissionStore stores admissions in memory like the database: facts of a build come from
// polls, Retired from elsewhere.
type admissionStore struct {
	mu       sync.Mutex
	away     bool
	rows     map[fleet.DeviceID]enrolment.Admission
	lastPoll map[fleet.DeviceID]time.Time
	latest   enrolment.BootPoll
	polls    int
	accepted int
	audit    []string
	saving   func() // called during SaveAdmission
}

var errAway = errors.New("connection refused")

func (s *admissionStore) put(a enrolment.Admission) {
	if s.rows == nil {
		s.rows = make(map[fleet.DeviceID]enrolment.Admission)
		s.lastPoll = make(map[fleet.DeviceID]time.Time)
	}
	s.rows[a.Device] = a
}

func (s *admissionStore) Admissions(context.Context) ([]enrolment.Admission, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, errAway
	}
	var all []enrolment.Admission
	for _, a := range s.rows {
		all = append(all, a)
	}
	return all, nil
}

func (s *admissionStore) SavePolls(_ context.Context, polls []enrolment.PollRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	for _, p := range polls {
		s.put(p.Admission)
		s.lastPoll[p.Poll.Device], s.latest = p.Poll.At, p.Poll
		s.polls++
		if p.Accepted != nil {
			s.accepted++
		}
	}
	return nil
}

func (s *admissionStore) ForgetWaiting(_ context.Context, before time.Time) ([]fleet.DeviceID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []fleet.DeviceID
	for id, a := range s.rows {
		if a.Enrolment == fleet.EnrolmentWaiting && s.lastPoll[id].Before(before) {
			delete(s.rows, id)
			gone = append(gone, id)
		}
	}
	return gone, nil
}

func (s *admissionStore) DropWaiting(_ context.Context, ids []fleet.DeviceID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if s.rows[id].Enrolment == fleet.EnrolmentWaiting {
			delete(s.rows, id)
		}
	}
	return nil
}

func (s *admissionStore) SaveAdmission(_ context.Context, by fleet.Principal, action string, a enrolment.Admission,
	_ time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.saving != nil {
		s.saving()
	}
	if s.away {
		return errAway
	}
	if _, ok := s.rows[a.Device]; !ok {
		return fleet.ErrNotFound
	}
	s.put(a)
	s.audit = append(s.audit, by.Name+" "+action+" "+string(a.Device))
	return nil
}

func (s *admissionStore) CreateDevice(_ context.Context, by fleet.Principal, a enrolment.Admission, _ string,
	_ time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	s.put(a)
	s.audit = append(s.audit, by.Name+" device.create "+string(a.Device))
	return nil
}

func (s *admissionStore) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *admissionStore) row(id fleet.DeviceID) enrolment.Admission {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[id]
}

func (s *admissionStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows)
}
