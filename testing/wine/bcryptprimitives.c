// What Go programs need from Windows 10 and Wine 8 lacks. Go loads this DLL before anything else, for ProcessPrng.
#include <windows.h>
#include <winternl.h>
#include <string.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T length) {
	return SystemFunction036(buffer, (ULONG)length);
}

typedef NTSTATUS(NTAPI *setInformationFile)(HANDLE, PIO_STATUS_BLOCK, PVOID, ULONG, FILE_INFORMATION_CLASS);

static setInformationFile original;

// Wine answers class 64, FileDispositionInformationEx, with a status that os.RemoveAll does not expect from an old
// system. STATUS_INVALID_INFO_CLASS makes it delete files in the old way.
static NTSTATUS NTAPI replacement(HANDLE file, PIO_STATUS_BLOCK io, PVOID data, ULONG length,
				  FILE_INFORMATION_CLASS class) {
	return class == 64 ? (NTSTATUS)0xC0000003 : original(file, io, data, length, class);
}

// A system call in Wine's ntdll is a few position-independent instructions, and begins with these.
static const BYTE systemCall[] = {0x4c, 0x8b, 0xd1, 0xb8};
enum { systemCallSize = 32 };

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, LPVOID reserved) {
	(void)self, (void)reserved;
	BYTE *call = (BYTE *)GetProcAddress(GetModuleHandleA("ntdll.dll"), "NtSetInformationFile");
	if (reason != DLL_PROCESS_ATTACH || !call || memcmp(call, systemCall, sizeof systemCall))
		return TRUE;
	BYTE *copy = VirtualAlloc(NULL, systemCallSize, MEM_COMMIT | MEM_RESERVE, PAGE_EXECUTE_READWRITE);
	DWORD old;
	if (!copy || !VirtualProtect(call, systemCallSize, PAGE_EXECUTE_READWRITE, &old))
		return TRUE;
	memcpy(copy, call, systemCallSize);
	original = (setInformationFile)copy;
	void *to = replacement;
	BYTE jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; // mov rax, to; jmp rax
	memcpy(jump + 2, &to, sizeof to);
	memcpy(call, jump, sizeof jump);
	VirtualProtect(call, systemCallSize, old, &old);
	return TRUE;
}
