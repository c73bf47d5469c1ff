package console

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"fleetd/fleet"
	"fleetd/web/console/device"
	"fleetd/web/console/pages"
	"fleetd/web/ui"
)

// maxActs is the number of devices for which an act is proposed.
const maxActs = 5

// A verb is an act that a search can name.
type verb struct {
	act   ui.Act
	tool  string // that the device must offer; "" if the act calls none
	words []string
}

var verbs = []verb{
	{ui.ActReboot, fleet.ToolReboot, []string{"reboot", "restart", "重新启动", "重启"}},
	{ui.ActVolume, fleet.ToolSetVolume, []string{"volume", "音量"}},
	{ui.ActPicture, fleet.ToolSnapshot, []string{"snapshot", "screenshot", "picture", "截图", "截屏"}},
	{ui.ActUpdate, "", []string{"update", "upgrade", "升级", "更新"}},
	{ui.ActTag, "", []string{"tag", "标签"}},
	{ui.ActHold, "", []string{"hold", "锁定"}},
}

// readAct reads a text such as "reboot kitchen", "volume 30 kitchen", "tag lab kitchen", "kitchen
// reboot" or "重启厨房". value is the volume or the tag, and query the rest, which names devices.
func readAct(text string) (v verb, value, query string, ok bool) {
	words := strings.Fields(text)
	v, words, ok = cutVerb(words)
	if !ok {
		return v, "", "", false
	}
	switch v.act {
	case ui.ActVolume:
		if i := slices.IndexFunc(words, isVolume); i >= 0 {
			value, words = strings.TrimSuffix(words[i], "%"), slices.Delete(words, i, i+1)
		}
	case ui.ActTag:
		if len(words) > 0 {
			value, words = words[0], words[1:]
		}
	}
	query = strings.Join(words, " ")
	return v, value, query, query != ""
}

// cutVerb finds the verb in the first or the last word. A Chinese verb needs no space after it.
func cutVerb(words []string) (v verb, rest []string, ok bool) {
	if len(words) == 0 {
		return v, nil, false
	}
	first, last := strings.ToLower(words[0]), strings.ToLower(words[len(words)-1])
	for _, v := range verbs {
		switch {
		case slices.Contains(v.words, first):
			return v, slices.Clone(words[1:]), true
		case slices.Contains(v.words, last):
			return v, slices.Clone(words[:len(words)-1]), true
		}
		for _, word := range v.words {
			if after, ok := strings.CutPrefix(first, word); ok && word[0] >= 0x80 {
				return v, append([]string{after}, words[1:]...), true
			}
		}
	}
	return v, nil, false
}

func isVolume(word string) bool {
	n, err := strconv.Atoi(strings.TrimSuffix(word, "%"))
	return err == nil && n >= 0 && n <= 100
}

// findActs proposes the acts that the text names, on devices that match, as far as the viewer may
// carry them out. A proposal leads to the page on which the act is confirmed.
func (s *Server) findActs(ctx context.Context, text string) ([]ui.FoundAct, error) {
	v, value, query, ok := readAct(text)
	if !ok || !pages.MayAct(ctx) {
		return nil, nil
	}
	q, err := fleet.ParseQuery(query)
	if err != nil {
		return nil, nil
	}
	p, err := s.Devices.Devices(ctx, fleet.DeviceFilter{Query: q, Sort: fleet.SortName, Limit: foundDevices})
	if err != nil {
		return nil, err
	}
	var acts []ui.FoundAct
	for _, d := range p.Items {
		may, err := s.mayDo(ctx, v, d)
		if err != nil {
			return nil, err
		}
		if may && len(acts) < maxActs {
			acts = append(acts, ui.FoundAct{Act: v.act, Device: d.ID, Title: d.Title(), Value: value})
		}
	}
	if len(acts) < 2 {
		return acts, nil
	}
	n, err := s.Devices.CountDevices(ctx, q)
	return append(acts, ui.FoundAct{Act: v.act, Value: value, Query: query, Matched: n}), err
}

// mayDo reports whether the viewer may do the act on the device, and the device can.
func (s *Server) mayDo(ctx context.Context, v verb, d fleet.Device) (bool, error) {
	if d.RetiredAt != nil || d.Enrolment != fleet.EnrolmentEnrolled || !pages.MayActOn(ctx, d) {
		return false, nil
	}
	if v.tool == "" {
		return v.act != ui.ActUpdate || d.IsBoard(), nil
	}
	inv, err := s.Devices.Tools(ctx, d.ID)
	return device.Offers(inv, v.tool) && pages.ViewerOf(ctx).Actor().Scope.AllowsTool(v.tool),
		pages.Unless(err, fleet.ErrNotFound)
}
