package ui

import (
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
)

func TestHeadOffersCall(t *testing.T) {
	now := time.Now()
	tests := []struct {
		name   string
		device fleet.Device
		tab    string
		canAct bool
		want   bool
	}{
		{"on the first tab", fleet.Device{Enrolment: fleet.EnrolmentEnrolled}, "", true, true},
		{"among the tools themselves", fleet.Device{Enrolment: fleet.EnrolmentEnrolled}, "tools", true, false},
		{"to a viewer", fleet.Device{Enrolment: fleet.EnrolmentEnrolled}, "", false, false},
		{"before it is let in", fleet.Device{Enrolment: fleet.EnrolmentWaiting}, "", true, false},
		{"after it was retired", fleet.Device{Enrolment: fleet.EnrolmentEnrolled, RetiredAt: &now}, "", true, false},
	}
	for _, tt := range tests {
		if got := NewDeviceHead(tt.device, tt.tab, now, tt.canAct).offersCall(); got != tt.want {
			t.Errorf("%s: the head offers a call: %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestEachTabHasItsTitle(t *testing.T) {
	titles := make(map[string]string)
	for _, tab := range deviceTabs {
		h := NewDeviceHead(fleet.Device{ID: "a085e3112233", Name: "Lobby"}, tab.tab, time.Now(), true)
		title := h.frame(t.Context()).Title
		if other, ok := titles[title]; ok {
			t.Errorf("the tabs %q and %q are both titled %q", other, tab.tab, title)
		}
		if titles[title] = tab.tab; !strings.Contains(title, "Lobby") {
			t.Errorf("the tab %q is titled %q, without the device", tab.tab, title)
		}
	}
}
