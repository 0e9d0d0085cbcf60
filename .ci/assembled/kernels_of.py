import sys,os,re
sys.path[:0]=["/tmp/t36","/work/main","/work/main/tests/kernels"]; os.environ["TRITON_INTERPRET"]="0"
from flashlab import runtime
import torch, triton, math
import kernel_compile as kc
from flashlab.kernels import forward as F, backward as B, tiles as TT, launch as L, masks
from flashlab.kernels.masks import Mask, decode
# pretend arch 90
for m in (TT,F,B):
    if hasattr(m,'architecture'): m.architecture=lambda d:90
TT.shared_memory=lambda d:227*1024
got=[]
def launch(self,tensors,*free):
    if self.described: tensors=(*map(L.described_by,self.described,tensors),*tensors[len(self.described):])
    got.append((self.kernel,(*tensors,*self.numbers,*free),dict(self.constants),dict(self.options)))
L.Plan.launch=launch
def typ(x):
    if isinstance(x,torch.Tensor):
        return {"torch.float32":"*fp32","torch.bfloat16":"*bf16","torch.float16":"*fp16"}[str(x.dtype)]
    if x is None: return None
    if isinstance(x,bool): return x
    if isinstance(x,int):
        if x==1: return 1
        return ("i64" if not -2**31<=x<2**31 else "i32")+(":16" if x%16==0 else "")
    if isinstance(x,float): return "fp32"
    if isinstance(x,tuple): return tuple(map(typ,x))
    raise Exception(type(x))
def make(n,head_dim,heads,views,name,places,causal,scale,sinks,deterministic,dtype):
    import test_attention as T
    batch=1+(heads[0]<3)
    scale=head_dim**-.5*(1 if scale is None else scale)
    q,k,v=T.tensors(*n,head_dim,*heads,dtype,batch)
    mask,_=T.MASKS[name](batch,heads[0],*places)
    m=(mask or Mask()) & (masks.causal() if causal else Mask())
    do,dlse=T.VIEWS[views[3]](torch.randn_like(q)),torch.randn(batch,heads[0],n[0])
    sink=torch.linspace(-1,1,heads[0]).to(q.dtype) if sinks else None
    q,k,v=(T.VIEWS[w](x) for w,x in zip(views,(q,k,v)))
    fm,pp=decode(*m.encode())
    o,lse=F.forward(q,k,v,fm,pp,scale,sink)
    B.backward(q,k,v,o,lse,do,dlse,fm,pp,scale,fused=not deterministic)
make((202,153),20,(4,2),('every second','every second','one row for all','plain'),'prefix',(2,-2),True,-1.0,True,True,'bfloat16')
for kernel,args,constants,options in got:
    names=kernel.arg_names; given={}
    for nme,a in zip(names,args): given[nme]=typ(a)
    given.update(constants)
    c=kc.compile_kernel(kernel,given,90,options["num_warps"],options["num_stages"],maxnreg=options.get("maxnreg"))
    ptx=c.asm["ptx"]; open(f"/tmp/f_{kernel.__name__}.ptx","w").write(ptx); open(f"/tmp/f_{kernel.__name__}.ttgir","w").write(c.asm["ttgir"])
    ld=re.findall(r"^\s*(@\S+ )?(ld\.global\S*|cp\.async\S*|st\.global\S*|atom\S*|red\S*)",ptx,re.M)
    from collections import Counter
    print(kernel.__name__,options,constants["LAYOUT"],kc.resources(c,90)); print(Counter((bool(p),i) for p,i in ld))
import subprocess
for kernel,args,constants,options in got:
    names=kernel.arg_names; given={}
    for nme,a in zip(names,args): given[nme]=typ(a)
    given.update(constants)
    c=kc.compile_kernel(kernel,given,90,options["num_warps"],options["num_stages"],maxnreg=options.get("maxnreg"))
    open(f"/tmp/f_{kernel.__name__}.cubin","wb").write(c.asm["cubin"])
