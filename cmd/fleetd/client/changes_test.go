package client

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

func TestChangesAndPlaces(t *testing.T) {
	const sum = `{"span":"6h","since":"2026-06-01T08:00:00Z","until":"2026-06-01T14:00:00Z",
		"compared_from":"2026-06-01T09:00:00Z","by_field":{"added":3,"removed":0,"tags":2},
		"versions":[{"version":"2.4.0","before":1,"now":7},{"version":"2.3.0","before":9,"now":4}],
		"went_offline":2,"came_online":4,"away":{"devices":1,"q":"presence:offline -transport:ws seen<6h"},
		"crashed":{"devices":0,"q":"crashed<6h"},"rebuilt":6,"updated":5,"not_updated":1,
		"configured":{"devices":["a085e3112233","a085e3112244"],"more":true},"calls":12,"failed_calls":3,"alerts_began":1,
		"alerts_ended":0,"acts_total":4,"acts":[{"action":"device.hold","count":3,"actors":["alice","bob"]}]}`
	const site = `{"items":[{"path":"site","q":"tag:site,site/*","devices":9,"joined":8,"online":7,"crashed":1,"reporting":8,
		"versions":2,"version":"2.4.0","on_version":6,"alerts":["x"],"campaigns":[]}],"more":true}`
	s := newREST(t, map[string]string{"GET /changes": sum, "GET /places": site})
	testCommands(t, s, []commandTest{
		{args: []string{"changes"}, asks: []string{"GET /changes?since=1h"}, prints: `"failed_calls": 3`},
		{args: []string{"changes", "--since", "6h", "--json"}, asks: []string{"GET /changes?since=6h"}, prints: "device.hold"},
		{args: []string{"changes", "--since", "2h"}, failure: "--since must be one of"},
		{args: []string{"place", "list"}, asks: []string{"GET /places"}, prints: `"site"`},
		{args: []string{"places", "list", "site/room 1"}, asks: []string{"GET /places?within=site%2Froom+1"}, prints: `"more": true`},
		{args: []string{"place", "list", "a", "b"}, failure: "unexpected argument b"},
	})

	var c Changes
	var p Places
	if err := errors.Join(json.Unmarshal([]byte(sum), &c), json.Unmarshal([]byte(site), &p)); err != nil {
		t.Fatal(err)
	}
	for _, table := range []struct{ got, want [][]string }{
		{c.rows(), [][]string{{"(since)", "", "2026-06-01 08:00:00"}, {"(history since)", "", "2026-06-01 09:00:00"},
			{"added", "3", ""}, {"went offline", "2", ""}, {"offline now", "1", "presence:offline -transport:ws seen<6h"},
			{"came online", "4", ""}, {"alerts began", "1", ""}, {"new build", "6", ""}, {"updated", "5", ""},
			{"not updated", "1", ""}, {"version 2.4.0", "+6", "1 -> 7"}, {"version 2.3.0", "-5", "9 -> 4"},
			{"tags changed", "2", ""}, {"configured", "2", "a085e3112233,a085e3112244, and more"}, {"calls", "12", ""},
			{"failed calls", "3", ""}, {"acts", "4", ""}, {"device.hold", "3", "alice, bob"}}},
		{p.rows(), [][]string{{"site", "9", "8", "7", "1", "2.4.0", "6", "2", "1", "0"},
			{"(more: name a place to list those within it)"}}},
	} {
		if !reflect.DeepEqual(table.got, table.want) {
			t.Errorf("the table is %q, want %q", table.got, table.want)
		}
	}
}
