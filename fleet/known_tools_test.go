package fleet

import "testing"

func TestReadsOnly(t *testing.T) {
	for tool, want := range map[string]bool{
		"self.get_device_status": true, "get_device_status": true, "self.config.get": true, "self.screen.get_info": true,
		"self.files.list": true, "self.files.list_all": true, "self.sensor.read_temperature": true, ToolLogsTail: true,
		ToolCoreDumpInfo: true,
		"":               false, "self.audio_speaker.set_volume": false, "self.getaway.drive": false, "self.get.reset": false,
		"self.listen": false, "self.budget": false, "get": true, ToolReboot: false, ToolSnapshot: false,
		ToolConfigSet: false, "self.camera.take_photo": false, ToolUpgradeFirmware: false,
	} {
		if got := ReadsOnly(tool); got != want {
			t.Errorf("ReadsOnly(%q) = %t", tool, got)
		}
	}
}
