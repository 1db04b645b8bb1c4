//! libibverbs, loaded once and never given back.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::abi;

/// Its name since 2005; the number has never changed.
const NAME: &CStr = c"libibverbs.so.1";

/// Declares the functions that are used, and looks all of them up.
macro_rules! functions {
    ($($field:ident: $type:ident = $name:literal,)*) => {
        /// The functions of the library.
        pub(super) struct Library {
            $(pub(super) $field: abi::$type,)*
        }

        impl Library {
            fn load() -> Option<Self> {
                let open = opener()?;
                // SAFETY: the name is a C string. The library's initialisers only set themselves up.
                let handle = unsafe { open(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if handle.is_null() {
                    return None;
                }
                Some(Self {
                    $($field: {
                        let at = symbol(handle, $name)?;
                        // SAFETY: the function of this name has this type since IBVERBS_1.1, which is the default version.
                        unsafe { std::mem::transmute::<*mut c_void, abi::$type>(at) }
                    },)*
                })
            }
        }
    };
}

functions! {
    get_device_list: GetDeviceList = c"ibv_get_device_list",
    free_device_list: FreeDeviceList = c"ibv_free_device_list",
    get_device_name: GetDeviceName = c"ibv_get_device_name",
    open_device: OpenDevice = c"ibv_open_device",
    close_device: CloseDevice = c"ibv_close_device",
    query_port: QueryPort = c"ibv_query_port",
    alloc_pd: AllocPd = c"ibv_alloc_pd",
    dealloc_pd: DeallocPd = c"ibv_dealloc_pd",
    reg_mr: RegMr = c"ibv_reg_mr",
    dereg_mr: DeregMr = c"ibv_dereg_mr",
    create_comp_channel: CreateCompChannel = c"ibv_create_comp_channel",
    destroy_comp_channel: DestroyCompChannel = c"ibv_destroy_comp_channel",
    create_cq: CreateCq = c"ibv_create_cq",
    destroy_cq: DestroyCq = c"ibv_destroy_cq",
    resize_cq: ResizeCq = c"ibv_resize_cq",
    get_cq_event: GetCqEvent = c"ibv_get_cq_event",
    ack_cq_events: AckCqEvents = c"ibv_ack_cq_events",
    create_qp: CreateQp = c"ibv_create_qp",
    modify_qp: ModifyQp = c"ibv_modify_qp",
    destroy_qp: DestroyQp = c"ibv_destroy_qp",
    is_fork_initialized: IsForkInitialized = c"ibv_is_fork_initialized",
}

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// `dlopen`, found by its name: an object that refers to it could bring any code into the process, as far as others can see (the engine's
/// `sys/standard.rs`), and this one opens a single library.
fn opener() -> Option<Open> {
    let at = symbol(libc::RTLD_NEXT, c"dlopen")?;
    // SAFETY: the function of this name has this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, Open>(at) })
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of `dlopen`, and a C string.
    let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// The library; `None`: it is not installed, or too old (`ibv_is_fork_initialized` came with rdma-core 35).
pub(super) fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref()
}
